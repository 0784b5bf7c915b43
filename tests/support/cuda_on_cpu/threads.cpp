// Runs the threads of a CUDA kernel on one thread of the CPU, each on a stack of its own that it
// leaves where it must wait. Blocks run one after another.
//
// A thread that never waits costs a call of a function: the next one begins on the same stack. What a
// kernel does wrong (a fault of memory, what g++ was told to trap, threads that wait for what never
// comes) ends the launch and is told in words.

#include <dlfcn.h>
#include <link.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

using uint = unsigned;
struct uint3 { uint x, y, z; };

extern "C" {
uint3 threadIdx, blockIdx, blockDim, gridDim;  // as the kernels know them
void *__tls_get_addr(size_t *module_and_offset);
}

namespace {

constexpr int MOST_THREADS = 1024, LANES = 32;
constexpr size_t STACK_BYTES = 256 << 10, GUARD_BYTES = 4 << 10;
constexpr unsigned long long POISON = ~0ull;  // NaN, to who takes it from a lane that is not there

struct Fiber {
    ucontext_t beginning;
    jmp_buf at;
    bool begun;
    char *stack;
    int thread;  // the one that it runs
};

enum State { NEW, READY, AT_BARRIER, IN_WARP, ENDED };

struct Thread {
    State state;
    Fiber *fiber;
    int line;                          // of the source, where it waits
    unsigned mask, votes;              // in a warp
    unsigned long long value, result;  // handed in, and taken out
    int source;                        // the lane whose value it takes; -1: none
};

Fiber fibers[MOST_THREADS], *idle[MOST_THREADS], *running;
Thread threads[MOST_THREADS];
int idle_count, thread_count, at_barrier, ended;
bool descending;
void (*kernel)(void **);
void **arguments;
jmp_buf scheduler;
sigjmp_buf failed;
char *message;
size_t message_bytes;
void *instruction;

[[noreturn]] void fail(const char *format, ...) {
    size_t used = snprintf(
        message, message_bytes, "thread (%u, %u, %u) of block (%u, %u, %u) ", threadIdx.x,
        threadIdx.y, threadIdx.z, blockIdx.x, blockIdx.y, blockIdx.z);
    va_list values;
    va_start(values, format);
    vsnprintf(message + used, message_bytes - used, format, values);
    siglongjmp(failed, 1);
}

void on_signal(int number, siginfo_t *about, void *context) {
#if defined(__x86_64__)
    instruction = (void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    instruction = (void *)((ucontext_t *)context)->uc_mcontext.pc;
#endif
    if (number == SIGSEGV || number == SIGBUS)
        fail("touches memory that is not the kernel's, at %p", about->si_addr);
    if (number == SIGFPE) fail("divides an integer by zero");
    fail("makes a misaligned access, leaves an array's bounds, or an integer overflows");
}

void set_thread(int thread) {
    threadIdx = {
        thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
}

int in_order(int at, int count) { return descending ? count - 1 - at : at; }

void begin(int thread) {
    threads[thread].state = READY;
    threads[thread].fiber = running;
    running->thread = thread;
    set_thread(thread);
}

// Gives `running` the next thread of the warp, if the next one has not begun.
bool take_thread() {
    const int next = running->thread + (descending ? -1 : 1);
    if (next < 0 || next >= thread_count || next / LANES != running->thread / LANES) return false;
    if (threads[next].state != NEW) return false;
    begin(next);
    return true;
}

void leave() {
    if (_setjmp(running->at) == 0) _longjmp(scheduler, 1);
}

void fiber_main() {
    for (;;) {
        do {
            kernel(arguments);
            threads[running->thread].state = ENDED;
            ++ended;
        } while (take_thread());
        idle[idle_count++] = running;
        leave();
    }
}

void enter(Fiber *fiber) {
    running = fiber;
    if (_setjmp(scheduler) != 0) return;
    if (fiber->begun) _longjmp(fiber->at, 1);
    fiber->begun = true;
    setcontext(&fiber->beginning);
}

// Anew after a failure, which leaves threads in the middle of a kernel.
void make_fibers() {
    idle_count = 0;
    for (Fiber &fiber : fibers) {
        if (fiber.stack == nullptr) {
            fiber.stack = (char *)mmap(
                nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            mprotect(fiber.stack, GUARD_BYTES, PROT_NONE);
        }
        getcontext(&fiber.beginning);
        fiber.beginning.uc_stack.ss_sp = fiber.stack;
        fiber.beginning.uc_stack.ss_size = STACK_BYTES;
        makecontext(&fiber.beginning, fiber_main, 0);
        fiber.begun = false;
        idle[idle_count++] = &fiber;
    }
}

void tell_deadlock() {
    int first = 0;
    while (threads[first].state == ENDED) ++first;
    set_thread(first);
    for (int t = first; t < thread_count; ++t)
        if (threads[t].state != ENDED && threads[t].line != threads[first].line)
            fail("waits at line %d, and others at line %d", threads[first].line, threads[t].line);
    fail("waits at line %d for threads that have ended: %d", threads[first].line, ended);
}

// Runs a warp as far as it comes without the others: it may be far ahead of them on a card, too.
bool run_warp(int warp) {
    const int first = warp * LANES;
    const int count = thread_count - first < LANES ? thread_count - first : LANES;
    bool moved = false;
    for (bool again = true; again;) {
        again = false;
        for (int i = 0; i < count; ++i) {
            const int thread = first + in_order(i, count);
            if (threads[thread].state == NEW) {
                running = idle[--idle_count];
                begin(thread);
                enter(running);
            } else if (threads[thread].state == READY) {
                set_thread(thread);
                enter(threads[thread].fiber);
            } else {
                continue;
            }
            moved = again = true;
        }
    }
    return moved;
}

void run_block() {
    at_barrier = ended = 0;
    for (int t = 0; t < thread_count; ++t) threads[t].state = NEW;
    const int warps = (thread_count + LANES - 1) / LANES;
    while (ended < thread_count) {
        bool moved = false;
        for (int i = 0; i < warps; ++i) moved |= run_warp(in_order(i, warps));
        if (!moved) tell_deadlock();
    }
}

struct Shared {
    const void *inside;  // some address in the kernel's library
    void *begin;
    size_t bytes;
};

// What a kernel's blocks share is its library's thread-local memory.
int find_shared(dl_phdr_info *library, size_t, void *wanted) {
    Shared &shared = *(Shared *)wanted;
    bool here = false;
    size_t bytes = 0;
    for (int i = 0; i < library->dlpi_phnum; ++i) {
        const auto &part = library->dlpi_phdr[i];
        const size_t from_begin = (size_t)shared.inside - (library->dlpi_addr + part.p_vaddr);
        if (part.p_type == PT_LOAD && from_begin < part.p_memsz) here = true;
        if (part.p_type == PT_TLS) bytes = part.p_memsz;
    }
    if (!here) return 0;
    size_t module_and_offset[2] = {library->dlpi_tls_modid, 0};
    if (bytes > 0) shared.begin = __tls_get_addr(module_and_offset);
    shared.bytes = bytes;
    return 1;
}

const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE};

}  // namespace

extern "C" {

void cuda_on_cpu_barrier(int line) {
    Thread &me = threads[running->thread];
    me.state = AT_BARRIER;
    me.line = line;
    if (++at_barrier < thread_count) return leave();
    for (int t = 0; t < thread_count; ++t)
        if (threads[t].line != line) tell_deadlock();
    for (int t = 0; t < thread_count; ++t) threads[t].state = READY;
    at_barrier = 0;
}

unsigned long long cuda_on_cpu_exchange(
    unsigned mask, unsigned long long value, int source, unsigned *votes, int line) {
    const int first = running->thread / LANES * LANES, lane = running->thread - first;
    Thread *lanes = threads + first, &me = lanes[lane];
    if (!(mask >> lane & 1)) fail("exchanges values at line %d, and is not in the mask", line);
    if (thread_count - first < LANES) mask &= (1u << (thread_count - first)) - 1;
    me.state = IN_WARP, me.line = line, me.mask = mask, me.value = value, me.source = source;
    unsigned here = 0, bits = 0;
    for (int l = 0; l < LANES; ++l) {
        if (!(mask >> l & 1) || lanes[l].state != IN_WARP) continue;
        if (lanes[l].line == line && lanes[l].mask == mask) here |= 1u << l;
        if (lanes[l].value != 0) bits |= 1u << l;
    }
    if (here == mask) {
        for (int l = 0; l < LANES; ++l) {
            if (!(mask >> l & 1)) continue;
            const int from = lanes[l].source;
            lanes[l].result = from >= 0 && (mask >> from & 1) ? lanes[from].value : POISON;
            lanes[l].votes = bits;
            lanes[l].state = READY;
        }
    } else {
        leave();
    }
    *votes = me.votes;
    return me.result;
}

// Bytes between pages that nobody may touch; the last of them is the last of its page.
void *cuda_on_cpu_map(size_t bytes, size_t margin) {
    char *begin = (char *)mmap(
        nullptr, bytes + 2 * margin, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) return nullptr;
    mprotect(begin + margin, bytes, PROT_READ | PROT_WRITE);
    return begin + margin;
}
void cuda_on_cpu_unmap(void *begin, size_t bytes, size_t margin) {
    munmap((char *)begin - margin, bytes + 2 * margin);
}

// Of a block, in bytes; -1 where the kernel's library is not found.
long long cuda_on_cpu_shared_bytes(const void *inside) {
    Shared shared = {inside, nullptr, 0};
    return dl_iterate_phdr(find_shared, &shared) ? (long long)shared.bytes : -1;
}

// Runs a grid. Returns 0, or 1 and says what went wrong, and at which instruction of the kernel's
// library if it is known.
int cuda_on_cpu_launch(
    void (*thread)(void **), void **of_kernel, const unsigned *grid, const unsigned *block,
    int backwards, char *told, size_t told_bytes, size_t *where) {
    static char handler_stack[64 << 10];
    static bool made = false;
    if (!made) make_fibers();
    made = true;
    kernel = thread, arguments = of_kernel, descending = backwards;
    message = told, message_bytes = told_bytes, instruction = nullptr;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    thread_count = block[0] * block[1] * block[2];
    Shared shared = {(const void *)thread, nullptr, 0};
    dl_iterate_phdr(find_shared, &shared);

    stack_t for_handler = {}, other_stack;
    for_handler.ss_sp = handler_stack;
    for_handler.ss_size = sizeof(handler_stack);
    sigaltstack(&for_handler, &other_stack);
    struct sigaction ours = {}, others[sizeof(SIGNALS) / sizeof(int)];
    ours.sa_sigaction = on_signal;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (size_t i = 0; i < sizeof(SIGNALS) / sizeof(int); ++i)
        sigaction(SIGNALS[i], &ours, &others[i]);

    volatile int status = 0;
    if (sigsetjmp(failed, 1) == 0) {
        const long long blocks = (long long)grid[0] * grid[1] * grid[2];
        for (long long i = 0; i < blocks; ++i) {
            const long long at = descending ? blocks - 1 - i : i;
            blockIdx = {
                (uint)(at % grid[0]), (uint)(at / grid[0] % grid[1]),
                (uint)(at / grid[0] / grid[1])};
            if (shared.bytes > 0) memset(shared.begin, 0xff, shared.bytes);
            run_block();
        }
    } else {
        status = 1;
        Dl_info ours, faulty;
        dladdr((const void *)thread, &ours);
        if (instruction && dladdr(instruction, &faulty) && faulty.dli_fbase == ours.dli_fbase)
            *where = (size_t)instruction - (size_t)faulty.dli_fbase;
        make_fibers();
    }
    for (size_t i = 0; i < sizeof(SIGNALS) / sizeof(int); ++i)
        sigaction(SIGNALS[i], &others[i], nullptr);
    sigaltstack(&other_stack, nullptr);
    return status;
}

}  // extern "C"

// Keeping a stream busy for a while: what is issued behind it is on the card, waiting, when it ends.
// One thread looks at the clock, and the rest of the card is free. Memory traffic: none.

__global__ void spin(unsigned long long nanoseconds) {
    unsigned long long began, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
    do {
        __nanosleep(1000);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - began < nanoseconds);
}

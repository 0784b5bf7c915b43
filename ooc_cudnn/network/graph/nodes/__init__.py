"""The nodes of networks, one file an operation.

How to add one:

1. **The node**, in a file here: a frozen dataclass on `Node`. Its fields of type `Tensor` (or
   tuples of them, or None) are what it reads, `y` is its one result (`Outside`
   has several, `results`); the others say what is done.
   It holds no arrays. `forward` emits phases, a `TiledCall` each with every operand bound to
   a tensor; `backward` emits the phases of the gradients, as fine as there are calls for:

       def forward(self, emit):
           emit.phase("forward", SomeCall(...), x=self.x, w=self.w, y=self.y)

       def backward(self, emit, dy):
           reads = {"x": self.x, "dy": dy}
           emit.gradient("filter gradient", SomeFilterGradient(...), reads, dw=self.w)
           reads = {"w": self.w, "dy": dy}
           emit.gradient("data gradient", SomeDataGradient(...), reads, dx=self.x)

   - Keywords of `gradient` say of which tensor each result is the gradient. `emit` names the tensor
     it goes to, adds with beta=1 where there is a part already, and drops the phase where nobody
     wants it: **a node never asks what is wanted**, unless it has a choice (`emit.wants(x)`).
     A result that nobody wants is bound to a tensor that nobody reads.
   - Where the gradient of x is dy itself, or a region of it: `emit.hand_on(dy, self.x, region)`.
     Where y is x, or a region of it: `emit.alias(self.y, self.x, region)`. Neither costs a phase.
   - What forward saves for backward (means, indices, masks as bits): `emit.saved("mean", shape,
     dtype)`, the same call in both. Save nothing large unless `emit.wants(self.x)`. A dtype that
     calls have is one that tensors have.
   - A tensor is bound to an operand whose shape differs in axes of extent 1: (c,) to (1, c, 1, 1).
   - Read in backward what keeps least: of y and x rather y where both would do.
   - `emit.is_training` is false in inference, `emit.settings` has allow_tf32 and deterministic.
   - A loss has shape (1,), and its gradient call reads dy, a tensor of shape (1,), as a factor.
2. **The builder**, a method with `@builder` in a mixin of `ooc_cudnn/network/graph/builders/` (one
   file a family): it takes what the public function takes, ends in ``name: str = ""``, checks, and
   returns ``self._add(SomeNode(name, self._result(name, shape, dtype), x, ...))``. The decorator
   makes the name ("convolution_3") and lets errors name the node. `self._parameter(name, "w",
   shape, dtype, initial)` makes a parameter ("convolution_3.w"), takes one that is given or shares
   one.
3. **The test**, in `tests/network/`: `check_network` of `tests/support/network_checks.py` compares
   result, every gradient and running statistics with PyTorch's autograd in float64.
"""

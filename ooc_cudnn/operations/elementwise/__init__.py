"""Operations on each element: activations, binary ones, casts, dropout, their gradients."""

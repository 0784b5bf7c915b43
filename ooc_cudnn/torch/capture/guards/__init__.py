"""Guards that TorchDynamo does not make: compared at each call beside its own."""

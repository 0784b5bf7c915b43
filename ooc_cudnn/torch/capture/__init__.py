"""TorchDynamo as `limit` uses it: what is followed, guarded or refused."""

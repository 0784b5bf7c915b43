"""What is kept, offloaded and rematerialized by a fixed rule: vDNN's and our own."""

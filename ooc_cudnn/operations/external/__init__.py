"""What other libraries compute, as calls: cut along images, or in tiles where they say how."""

"""External functions as calls: cut along images, or in tiles where they say how."""

"""The sequential engine: NumPy alone, one file a layer; the definition of the right answer."""

"""What a memory bank keeps under other settings, without a model."""

"""The array face: the environment behind fixed-size arrays, for tiny policies and Stable-Baselines3."""

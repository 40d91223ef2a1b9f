"""The names of safetensors that `regrow.safetensors` lacks, and why. The guide has the same
list.
"""

EXCEPTIONS = {
    f"safetensors.torch._float{rest}": "torch's own dtype under a second name"
    for rest in ("8_e4m3fn", "8_e4m3fnuz", "8_e5m2", "8_e5m2fnuz", "8_e8m0", "4_e2m1_x2")
}

MODULES = {
    "safetensors.tensorflow": "TensorFlow's tensors",
    "safetensors.mlx": "MLX' arrays",
    "safetensors.paddle": "Paddle's tensors",
    "safetensors._safetensors_rust": "the extension; all that it offers is in safetensors itself",
}

"""Scripts that load an exported model with its library, in that library's interpreter."""

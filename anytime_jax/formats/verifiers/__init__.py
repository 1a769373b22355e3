"""Scripts that load an exported model with the library it is for, in that library's interpreter."""

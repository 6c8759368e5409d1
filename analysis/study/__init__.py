"""Studies: rows of many prompts in, tables and figures out."""

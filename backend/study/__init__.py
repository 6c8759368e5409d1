"""Studies: many prompts under many policies and ratios, scored."""

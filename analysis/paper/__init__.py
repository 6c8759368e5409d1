"""The second renderer: figures on paper, drawn by matplotlib without a browser.

`venues` knows widths and sizes and imports nothing heavy; `renderer` loads matplotlib, so import it
only where something is exported.
"""

"""Results of a run: tables for the terminal, one self-contained page for the browser, LaTeX and plots."""

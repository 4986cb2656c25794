"""What users see of results: folders of files, pages, figures, text on the terminal, and timelines."""

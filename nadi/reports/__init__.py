"""What people see of a run: tables in the terminal, pages in a browser, timelines, and the files of a result folder."""

"""Reports of runs, changes and bisections in every output format.

The formats are Markdown, HTML, terminal tables, CSV, JSON, JUnit and plots.

Most modules are pure functions of values; run_lookup, run_recording and gates read and write the history.
"""

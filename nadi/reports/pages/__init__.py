"""Pages for a browser, with charts by plotly."""

"""Pages for a browser, with charts by plotly. The modules beside `page` and `charts` make one kind of page each."""

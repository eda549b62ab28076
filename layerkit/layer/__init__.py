"""What a layer is: tree, whiteouts, merge, chunk index, config, facts, manifest. Never imports the store."""

"""Where chunks lie: object stores, packs, locators, references, local knowledge. Never imports the layer."""

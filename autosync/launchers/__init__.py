"""How ranks are started: one interface (`request`), one module a launcher."""

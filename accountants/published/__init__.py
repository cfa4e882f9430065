"""The papers' formulas as published, each answer marked sound or not; `as_published` takes a specification."""

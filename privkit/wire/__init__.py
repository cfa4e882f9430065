"""The data that cross the cut: views for an attack, receipts for an accountant, truth for the scores."""

"""Data that cross the cut: views for attacks, receipts for accountants, and the truth for scores."""

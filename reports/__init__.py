"""Reports: rows in, tables, figures and one HTML page out. Renders what it is given and recomputes nothing.

This library knows neither the training core nor the attacks nor the accountants.
"""

if __name__ != "privkit.reports":
    raise ImportError("import privkit.reports, not reports: this folder is a part of the privkit package")

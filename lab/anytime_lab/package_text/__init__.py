"""Text of pinned packages: training sets and validation sets without near-duplicates.

`anytime package-text --output=DIR` downloads the archives that `packages.csv`
lists, reads Python sources and English documentation out of them, removes what is repeated, and
prepares datasets. lab/evidence/package_text.md has the packages and what was measured.
"""

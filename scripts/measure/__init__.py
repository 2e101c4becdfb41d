"""Parts that measuring scripts share: flags, rows and tables, files of schemas, answers."""

"""What a split costs, and which one to take: one table, one formula, one grid."""

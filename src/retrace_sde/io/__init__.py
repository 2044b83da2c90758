"""What users bring and take away: tables, files and formats, and arrays that stay where they are stored."""

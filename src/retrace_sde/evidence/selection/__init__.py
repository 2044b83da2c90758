"""Which account of the data holds: subjects alike or not, measured with noise or without; and its errors by resampling."""

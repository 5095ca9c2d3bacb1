"""Labelled data for the quality: a file here is a kind of data.

A kind has `open_data(job) -> Labelled` (perfdash.worker.quality), and may have `calibration(job,
batches)`: inputs of training data for static quantisation, `batches` whole batches of the case's size.
"""

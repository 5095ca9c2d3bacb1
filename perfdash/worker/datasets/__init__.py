"""Labelled data for the quality metric: one file per kind of data.

A kind has `open_data(job) -> Labelled` (perfdash.worker.quality). It may have `calibration(job, batches)`:
training inputs for static quantisation, `batches` full batches of the case's size.
"""

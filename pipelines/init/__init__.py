"""Write a run file for a folder of labelled images: scan the data, choose the settings, measure the step time."""

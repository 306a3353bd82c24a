"""Charts as SVG text, made by the server: they show without JavaScript, in print and in mail.

A chart is as wide as its place: bars and marks are at percentages, and lines in a part that is
stretched, so no letter is ever scaled. Colours come from the style sheet, by class.
"""

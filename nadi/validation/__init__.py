"""How far answers may be trusted: classes of questions, and the errors of each class in validation.

classes.toml declares the classes, questions.py computes the class of a question, and errors.json has the errors of each
class, which scripts/validation.py derives from figures that others measured (docs/explanation/validation.md). bands.py
makes bands of times of them.
"""

from nadi.validation.bands import ClassBands, RatioBand, band_of, bands_of, class_bands
from nadi.validation.bars import STATUSES, ClassErrors, ErrorBar, ErrorBarDocument, error_bars, errors_by_class
from nadi.validation.questions import TOKENS, Question, collective_question, gpu_name, serving_questions, step_question

"""The paper's figures and statements, reproduced: ``make paper``."""

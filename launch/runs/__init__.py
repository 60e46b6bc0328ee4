"""launch runs"""

"""`radixrt serve`."""


def serve() -> None:
    """x"""

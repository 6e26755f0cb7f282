"""`python -m recovery`, and the command `recovery`: handles signals before slow imports."""

from recovery.host.signals import end_after_grace, end_now, handle


def main(prog_name: str | None = None) -> None:
    """Run the command line."""
    handle(end_now)
    end_after_grace()
    from recovery.cli import main as command

    command(prog_name=prog_name)


if __name__ == "__main__":
    main("python -m recovery")

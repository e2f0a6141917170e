"""`elk-opt`: this project's mlir-opt, an xDSL driver that knows elk-ir's dialects and passes.

    elk-opt FILE.mlir|FILE.onnx -p 'pass{option=value},pipeline,...' [-t TARGET]

Exit codes: 0 done, 1 the input or the pipeline is wrong (or a pass crashed), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import IO, Any, ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute
from xdsl.passes import ModulePass, PassPipeline
from xdsl.universe import Universe
from xdsl.utils.arg_spec import ArgSpec, parse_spec
from xdsl.utils.diagnostic import Diagnostic
from xdsl.utils.exceptions import DiagnosticException, ShrinkException
from xdsl.xdsl_opt_main import xDSLOptMain

from elk_ir import __version__
from elk_ir.errors import ElkError, UsageError, check_file_name
from elk_ir.pipelines import PIPELINES
from elk_ir.universe import all_dialects

from .exits import STOPPED, say, stopped
from .opt_crash import Reproducer
from .opt_diagnostics import USER_ERRORS, render, summarize
from .opt_input import LocatedMLIRFrontend, open_input, quote_spec
from .opt_pipeline import Timing, parse_passes, unknown_name
from .opt_printing import Dumps, PrintOptions

TOOL = "elk-opt"
DEFAULT_ELEMENT_LIMIT = 16
_ELIDE_FLAG = "--elide-large-constants"


class PassCrash(Exception):
    """A pass raised something that is no user error; the message says all there is to say."""


class ElkOptMain(xDSLOptMain):
    """xDSL's driver with located errors, dumps, timing, named pipelines and reproducers."""

    version_format: ClassVar[str] = f"{TOOL} {__version__} (xdsl {{xdsl_version}})"

    def __init__(self, args: Sequence[str]):
        self.timing = Timing()
        self._temporary: Path | None = None
        self._final: Path | None = None
        self._line_offset = 0
        self._running: ModulePass | None = None
        self._finished: ModulePass | None = None
        # `--elide-large-constants FILE` must not take the file for its optional number.
        args = [f"{_ELIDE_FLAG}={DEFAULT_ELEMENT_LIMIT}" if a == _ELIDE_FLAG else a for a in args]
        super().__init__("Reads .mlir or .onnx, runs passes, prints IR or a target.", args)

    # Registration

    def register_all_dialects(self) -> None:
        for name, factory in all_dialects(Universe.get_multiverse()).items():
            self.ctx.register_dialect(name, factory)

    def register_all_frontends(self) -> None:
        super().register_all_frontends()
        self.available_frontends["mlir"] = lambda: LocatedMLIRFrontend

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        super().register_all_arguments(arg_parser)
        arg_parser.prog = TOOL
        group = arg_parser.add_argument_group("elk-opt")
        group.add_argument(
            "--dim",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="bind a symbolic dimension of an ONNX model (repeatable)",
        )
        group.add_argument(
            "--list-pipelines",
            action=_ListPipelines,
            help="list the named pipelines, each usable by its name in -p, and exit",
        )
        for moment in ("before", "after"):
            group.add_argument(
                f"--print-ir-{moment}",
                action="append",
                default=[],
                metavar="PASS,...",
                help=f"dump the IR {moment} these passes to stderr",
            )
            group.add_argument(
                f"--print-ir-{moment}-all",
                action="store_true",
                help=f"dump the IR {moment} every pass to stderr",
            )
        group.add_argument(
            "--timing", action="store_true", help="print CPU seconds by phase and pass to stderr"
        )
        group.add_argument(
            _ELIDE_FLAG,
            type=_count,
            default=None,
            metavar="N",
            help="print constants of more than N elements as a remark (the output cannot be "
            f"parsed again); without =N, {DEFAULT_ELEMENT_LIMIT}",
        )
        group.add_argument(
            "--crash-reproducer-dir",
            default=".",
            metavar="DIR",
            help="where the reproducer of a crashing pass is written (default: here)",
        )

    # Set-up: options are checked before any input is read.

    def setup_pipeline(self) -> None:
        self._frontend_spec = None if self.args.frontend is None else parse_spec(self.args.frontend)
        # From here on the frontend's name stands for the file extension (get_input_stream).
        self.args.frontend = None
        self._check_dims()
        self._dumps = self._dumps_from_args()

        passes = parse_passes(self.args.passes, self.available_passes, PIPELINES)
        given, self.args.passes = self.args.passes, ""
        super().setup_pipeline()
        self.args.passes = given
        self._verify_and_report = self.pipeline.callback
        self.pipeline = PassPipeline(passes, self._between_passes)

    def _check_dims(self) -> None:
        if self.args.dim:
            from elk_ir.frontend.xdsl_frontend import parse_dims

            parse_dims(self.args.dim)

    def _dumps_from_args(self) -> Dumps:
        args = self.args

        def selection(option: str) -> Sequence[str] | None:
            if getattr(args, f"{option}_all"):
                return None
            names = [name for group in getattr(args, option) for name in group.split(",") if name]
            for name in names:
                if name not in self.available_passes:
                    flag = f"--{option.replace('_', '-')}"
                    raise unknown_name(name, tuple(self.available_passes), flag)
            return names

        return Dumps(selection("print_ir_before"), selection("print_ir_after"), self.print_options)

    @property
    def print_options(self) -> PrintOptions:
        """How the IR is printed, in dumps and in the output."""
        return PrintOptions(
            generic=self.args.print_op_generic,
            properties_as_attributes=self.args.print_no_properties,
            debuginfo=self.args.print_debuginfo,
            highlight=self.args.syntax_highlight,
            element_limit=self.args.elide_large_constants,
        )

    # Input

    def get_input_stream(self) -> tuple[IO[bytes], str]:
        path = self.args.input_file or "-"
        if self._frontend_spec is not None:
            extension = self._frontend_spec.name
        elif path == "-":
            extension = "mlir"
        else:
            extension = Path(path).suffix.removeprefix(".")
        known = ", ".join(f".{name}" for name in sorted(self.available_frontends))
        stream = open_input(path)
        if extension not in self.available_frontends:
            stream.close()
            raise ElkError(
                f"no frontend reads '.{extension}' files" if extension else "no file extension",
                where=path,
                hint=f"known are {known}; -f NAME chooses one",
            )
        if self.args.dim and extension != "onnx":
            stream.close()
            raise UsageError(f"--dim binds dimensions of ONNX models, and {path} is not one")
        return stream, extension

    def get_input_name(self) -> str:
        path = self.args.input_file
        return "<stdin>" if path is None or path == "-" else path

    def parse_chunk(
        self, chunk: IO[bytes], file_extension: str, start_offset: int = 0
    ) -> ModuleOp | None:
        self._chunk = (chunk, file_extension, start_offset)
        self._running = self._finished = None
        with self.timing.phase("parse"):
            return super().parse_chunk(chunk, self._frontend_text(file_extension, start_offset))

    def _frontend_text(self, extension: str, line_offset: int) -> str:
        """The frontend's spec, completed by what the driver's own options say."""
        spec = self._frontend_spec or ArgSpec(extension, {})
        parameters = dict(spec.parameters)
        if spec.name == "mlir" and line_offset:
            parameters["line-offset"] = (line_offset,)
        if spec.name == "onnx" and self.args.dim:
            parameters["dim"] = (*parameters.get("dim", ()), *self.args.dim)
        return quote_spec(ArgSpec(spec.name, parameters))

    # Passes

    def apply_passes(self, prog: ModuleOp) -> None:
        try:
            super().apply_passes(prog)
        except DiagnosticException as error:
            if not self.args.verify_diagnostics:
                raise
            # xDSL prints the error's notes, which are the whole module: ours is one message.
            error.__notes__ = [self.render(error)]
            raise
        except (*USER_ERRORS, ShrinkException):
            raise
        except Exception as error:
            crashed = self._running or self._finished
            if crashed is None:
                raise
            raise PassCrash(self._report_crash(crashed, error)) from error
        finally:
            self.timing.switch(None)

    def _between_passes(
        self, previous: ModulePass | None, module: ModuleOp, following: ModulePass | None
    ) -> None:
        self.timing.switch(None)
        self._running, self._finished = None, previous
        if previous is not None:
            self._dumps.dump_after(previous.name, module, sys.stderr)
        with self.timing.phase("verify"):
            if self._verify_and_report is not None:
                self._verify_and_report(previous, module, following)
        if following is not None:
            self._dumps.dump_before(following.name, module, sys.stderr)
            self._running, self._finished = following, None
            self.timing.switch(f"pass {following.name}")

    def _report_crash(self, crashed: ModulePass, error: Exception) -> str:
        """Write a reproducer and say so. The compiler is deterministic: running again up to the
        crash gives the pass's input, so that no run pays for keeping it."""
        message = f"{TOOL}: error: pass '{crashed.name}' crashed: {summarize(error)}"
        passes = self.pipeline.passes
        index = next(i for i, each in enumerate(passes) if each is crashed)
        chunk, extension, offset = self._chunk
        text = StringIO()
        try:
            chunk.seek(0)
            module = self.parse_chunk(chunk, extension, offset)
            if module is None:
                return message
            PassPipeline(passes[:index]).apply(self.ctx, module)
            PrintOptions(generic=True, debuginfo=True).printer(text).print_op(module)
            reproducer = Reproducer(
                pass_name=crashed.name,
                pipeline=quote_spec(crashed.spec()),
                text=text.getvalue(),
                flags=self._replay_flags(),
                error=error,
            )
            path = reproducer.write(Path(self.args.crash_reproducer_dir))
        except Exception as failure:
            return f"{message}\n{TOOL}: note: no reproducer could be written: {summarize(failure)}"
        return f"{message}\n{TOOL}: note: replay with: {reproducer.command(path)}"

    def _replay_flags(self) -> tuple[str, ...]:
        flags = {
            "--allow-unregistered-dialect": self.args.allow_unregistered_dialect,
            "--disable-verify": self.args.disable_verify,
        }
        return tuple(flag for flag, is_set in flags.items() if is_set)

    # Output

    def prepare_output(self) -> IO[str]:
        path = self.args.output_file
        if path is None or path == "-":
            return sys.stdout
        check_file_name(path)
        final = Path(os.path.realpath(path))
        try:
            if final.exists() and not final.is_file():
                if final.is_dir():
                    raise IsADirectoryError(None, "Is a directory")
                return open(final, "w", encoding="utf-8")  # a device or a pipe
            temporary = final.with_name(f".{final.name}.{os.getpid()}.tmp")
            stream = open(temporary, "w", encoding="utf-8")
        except OSError as error:
            what = (error.strerror or str(error)).lower()
            raise ElkError(f"cannot write: {what}", where=path) from None
        self._temporary, self._final = temporary, final
        return stream

    def finish_output(self, succeeded: bool) -> None:
        """Put the output file in its place, or remove what was written of it."""
        if self._temporary is None or self._final is None:
            return
        if succeeded:
            if self._final.exists():
                shutil.copymode(self._final, self._temporary)
            self._temporary.replace(self._final)
        else:
            self._temporary.unlink(missing_ok=True)
        self._temporary = None

    def output_resulting_program(self, prog: ModuleOp) -> str:
        with self.timing.phase("print"):
            if self.args.elide_large_constants is None or self.args.target != "mlir":
                return super().output_resulting_program(prog)
            output = StringIO()
            printer = self.print_options.printer(output)
            printer.print_op(prog)
            printer.print_metadata(self.ctx.loaded_dialects)
            output.write("\n\n")
            return output.getvalue()

    def render(self, error: BaseException) -> str:
        """The message for a user error."""
        stage = None
        if self._running is not None:
            stage = f"while running pass '{self._running.name}'"
        elif self._finished is not None:
            stage = f"after pass '{self._finished.name}'"
        return render(error, TOOL, self.get_input_name(), stage)


class _ListPipelines(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        width = max(map(len, PIPELINES), default=0)
        for name, passes in sorted(PIPELINES.items()):
            print(f"{name:<{width}}  {passes}")
        parser.exit()


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of elements")
    return int(text)


def main(argv: Sequence[str] | None = None, driver: type[ElkOptMain] = ElkOptMain) -> int:
    """Run the driver on `argv` (default: the process's arguments) and return its exit code.

    Leaves no state behind, so that it can be called many times in one process.
    """
    post_init, colored = Attribute.__post_init__, Diagnostic.colored
    tool: ElkOptMain | None = None
    succeeded = False
    try:
        tool = driver(sys.argv[1:] if argv is None else argv)
        tool.run()
        succeeded = True
        return 0
    except SystemExit as request:  # argparse: --help, --version, wrong usage; xDSL: --shrink
        succeeded = request.code in (0, None)
        return request.code if isinstance(request.code, int) else int(not succeeded)
    except USER_ERRORS as error:
        say(tool.render(error) if tool is not None else render(error, TOOL, TOOL))
        return error.exit_code if isinstance(error, ElkError) else 1
    except PassCrash as crash:
        say(str(crash))
        return 1
    except STOPPED as error:
        return stopped(error, TOOL, tool and tool.args.output_file)
    except Exception as error:
        say(f"{TOOL}: error: internal error: {summarize(error)}")
        return 1
    finally:
        # --disable-verify and --syntax-highlight patch classes.
        Attribute.__post_init__, Diagnostic.colored = post_init, colored
        if tool is not None:
            tool.finish_output(succeeded)
            if tool.args.timing:
                say(tool.timing.table())


if __name__ == "__main__":
    sys.exit(main())

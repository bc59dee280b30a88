# SPDX-License-Identifier: Apache-2.0
"""The kernel of a code context of Python. boxd runs it in the box, as any program of it: python3 -c PROGRAM NONCE.

It reads requests, one JSON object a line, from its standard input. What the code writes goes straight to standard output and
error, where boxd reads it. The kernel's own events go the same way, so that they are in order with the output: each is a row of
frames of at most PIPE_BUF bytes, which a pipe never mixes with what others write. A frame is the byte 0x1e, the nonce, "+" or
"." if it is the last of its event, a piece of JSON in ASCII, and a newline.

A request is {"op": "run", "id", "code", "env"} or {"op": "sync", "id"}. Events are begin, result, error and end, or synced. begin,
end and synced are on both streams: between the first two of a stream is all that the code has written to it.
"""

import sys

if sys.path and sys.path[0] == "":
    del sys.path[0]  # until the kernel has its modules: a file of the user must not take the place of one

import ast  # noqa: E402
import base64  # noqa: E402
import builtins  # noqa: E402
import errno  # noqa: E402
import fcntl  # noqa: E402
import importlib.abc  # noqa: E402
import importlib.machinery  # noqa: E402
import inspect  # noqa: E402
import io  # noqa: E402
import json  # noqa: E402
import linecache  # noqa: E402
import math  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import select  # noqa: E402
import shlex  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import textwrap  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402
import types  # noqa: E402

NONCE = sys.argv[1].encode()
WANTED = os.environ.pop("BOXD_PYTHON_KERNEL", "own")  # own, ipykernel, or auto: ipykernel if Python has it
PIECE = select.PIPE_BUF - len(NONCE) - 3
MOST = 12 << 20  # bytes of one event
LONG = 4 << 20  # characters of a text
PRIVATE = 100  # descriptors of the kernel begin here, out of the way of those of the code
PID = os.getpid()


def private(fd):
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, PRIVATE)
    except OSError:  # so many are not allowed
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def put(fd, data):
    """Write all of it. Another program that has the pipe may have made it one that does not wait."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError as problem:
            if problem.errno not in (errno.EAGAIN, errno.EINTR):
                raise
            select.select([], [fd], [], 1)


class Events:
    """What the kernel tells boxd, on private copies of standard output and error."""

    def __init__(self):
        self.fds = (private(1), private(2))
        self.lock = threading.RLock()

    def send(self, stream, event):
        if os.getpid() != PID:
            return  # a copy of the kernel that the code has forked: the events are not its own
        text = json.dumps(event).encode()
        if len(text) > MOST:
            if event["e"] != "result":
                raise ValueError("an event of %d bytes" % len(text))
            small = {mime: value for mime, value in event["data"].items() if len(json.dumps(value)) < MOST // 8}
            small.setdefault("text/plain", "(a result of %d bytes, which is too long)" % len(text))
            text = json.dumps(dict(event, data=small)).encode()
        with self.lock, Unhurried():
            for at in range(0, len(text), PIECE):
                last = at + PIECE >= len(text)
                put(self.fds[stream], b"\x1e" + NONCE + (b"." if last else b"+") + text[at : at + PIECE] + b"\n")

    def both(self, kind, **more):
        flush()
        for stream in (0, 1):
            self.send(stream, dict(more, e=kind))


class Raw(io.RawIOBase):
    """A descriptor of the code, 1 or 2."""

    def __init__(self, fd):
        self.fd = fd

    def fileno(self):
        return self.fd

    def writable(self):
        return True

    def write(self, data):
        put(self.fd, data)
        return len(data)


class Stream(io.TextIOWrapper):
    """Lines go out as they end; a piece of one does if nothing has for a while."""

    def __init__(self, fd, name):
        super().__init__(io.BufferedWriter(Raw(fd), 1 << 16), encoding="utf-8", errors="backslashreplace", line_buffering=True)
        self.mode, self.what, self.last = "w", name, 0.0

    @property
    def name(self):
        return self.what

    def write(self, text):
        n = super().write(text)
        if not text.endswith("\n"):
            now = time.monotonic()
            if now - self.last > 0.1:
                self.flush()
            self.last = now
        return n

    def close(self):
        self.flush()  # the next execution has it again


def flush():
    for stream in (sys.stdout, sys.stderr, own_streams.get(1), own_streams.get(2)):
        try:
            stream.flush()
        except Exception:
            pass  # the code has closed it, or put something of its own there


# Interrupts: SIGINT ends what the code does, and nothing that the kernel does.

busy = False  # code runs
unhurried = 0  # events are being written
late = False  # an interrupt came meanwhile


def on_interrupt(*_):
    global late
    if threading.current_thread() is not threading.main_thread() or not busy:
        return
    if unhurried:
        late = True
        return
    raise KeyboardInterrupt


class Unhurried:
    """Put interrupts off, which only the main thread gets: half an event would be none."""

    def __enter__(self):
        global unhurried
        self.main = threading.current_thread() is threading.main_thread()
        if self.main:
            unhurried += 1

    def __exit__(self, *_):
        global unhurried, late
        if not self.main:
            return
        unhurried -= 1
        if late and not unhurried and busy:
            late = False
            raise KeyboardInterrupt


# What a value looks like.

REPRESENTATIONS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_pdf_", "application/pdf"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
)


def plain(value):
    text = repr(value)
    if 80 < len(text) < 100_000 and type(value) in (list, dict, tuple, set, frozenset):
        import pprint

        text = pprint.pformat(value, sort_dicts=False)
    return shortened(text)


def shortened(text):
    return text if len(text) <= LONG else text[:LONG] + "… (%d characters)" % len(text)


def jsonable(value, depth=0):
    """What JSON can say, whatever the value is made of."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if depth < 50 and isinstance(value, dict):
        return {str(k): jsonable(v, depth + 1) for k, v in value.items()}
    if depth < 50 and isinstance(value, (list, tuple, set, frozenset)):
        return [jsonable(v, depth + 1) for v in value]
    if hasattr(value, "isoformat"):
        return None if value != value else value.isoformat()  # a time that is none is no time, not even itself
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        try:
            return jsonable(value.item(), 50)
        except Exception:
            pass
    return str(value)


def method(value, name):
    if isinstance(value, type) or hasattr(value, "_boxd_has_no_such_method_"):  # or it has any
        return None
    found = getattr(value, name, None)
    return found if callable(found) else None


def attempt(make, *args, **kwargs):
    """What a method of the value says, None if it fails, which is shown."""
    try:
        found = make(*args, **kwargs)
    except NotImplementedError:
        return None
    except Exception:
        traceback.print_exc()
        return None
    return found[0] if isinstance(found, tuple) and found else found


def is_figure(value):
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(value, module.Figure)


def bundle(value):
    """The MIME types of a value and what it is in each. Raises what its __repr__ raises."""
    if is_figure(value):
        return figure(value)
    data, make = {}, method(value, "_repr_mimebundle_")
    if make:
        found = attempt(make, include=None, exclude=None)
        if isinstance(found, dict):
            data.update(found)
    for name, mime in REPRESENTATIONS:
        make = method(value, name)
        found = attempt(make) if make and mime not in data else None
        if found is not None:
            data[mime] = found
    if "text/plain" not in data:
        data["text/plain"] = plain(value)
    module = sys.modules.get("pandas")
    if module is not None and isinstance(value, getattr(module, "DataFrame", ())):
        try:
            data["e2b/data"] = {str(k): [jsonable(v) for v in column] for k, column in value.items()}
        except Exception:
            traceback.print_exc()
    return {str(mime): jsonable(what) for mime, what in data.items()}


def show(value, main=False):
    make = method(value, "_ipython_display_")
    if make and not main:
        make()
        return
    events.send(0, {"e": "result", "main": main, "data": bundle(value)})


def display(*values, raw=False, **_):
    """Show values as results. With raw they are dicts of what each MIME type has."""
    flush()
    for value in values:
        if raw:
            events.send(0, {"e": "result", "main": False, "data": {str(k): jsonable(v) for k, v in value.items()}})
        else:
            show(value)


# Figures of matplotlib.


def figure(fig):
    import matplotlib.backends.backend_agg as agg

    canvas = fig.canvas if hasattr(fig.canvas, "print_png") else agg.FigureCanvasAgg(fig)
    out = io.BytesIO()
    canvas.print_figure(out, format="png", bbox_inches="tight", facecolor=fig.get_facecolor(), edgecolor=fig.get_edgecolor())
    data = {"image/png": base64.b64encode(out.getvalue()).decode(), "text/plain": plain(fig)}
    try:
        data["e2b/chart"] = jsonable(chart(fig))
    except Exception:
        pass  # the picture is what counts
    return data


def show_figures(*_, **__):
    """Show all figures there are, and close them."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or not hasattr(pyplot, "get_fignums"):
        return
    flush()
    for number in pyplot.get_fignums():
        fig = pyplot.figure(number)
        pyplot.close(fig)
        if fig.get_axes() or fig.lines or fig.texts or fig.images or fig.patches:
            show(fig)


def chart(fig):
    axes = [ax for ax in fig.axes if ax.get_label() != "<colorbar>"]
    if len(axes) == 1:
        return axes_chart(axes[0])
    title = getattr(fig, "_suptitle", None)
    return {"type": "superchart", "title": title.get_text() or None if title else None, "elements": [axes_chart(ax) for ax in axes]}


def axes_chart(ax):
    from matplotlib.collections import PathCollection
    from matplotlib.container import BarContainer
    from matplotlib.patches import Wedge

    title = ax.get_title() or None
    boxes = getattr(ax, "_boxd_boxes", None)
    bars = [c for c in ax.containers if isinstance(c, BarContainer)]
    wedges = [p for p in ax.patches if isinstance(p, Wedge)]
    points = [c for c in ax.collections if isinstance(c, PathCollection)]
    labels = {"x_label": ax.get_xlabel() or None, "y_label": ax.get_ylabel() or None}
    labels.update(x_unit=unit(labels["x_label"]), y_unit=unit(labels["y_label"]))
    if boxes:
        return dict(labels, type="box_and_whisker", title=title, elements=[box(ax, i, stats) for i, stats in enumerate(boxes)])
    if wedges:
        slices = [{"label": w.get_label(), "angle": round(abs(w.theta2 - w.theta1), 4), "radius": w.r} for w in wedges]
        return {"type": "pie", "title": title, "elements": slices}
    if bars:
        return dict(labels, type="bar", title=title, elements=[bar(ax, c, patch) for c in bars for patch in c.patches])
    lines = ax.get_lines()
    if not lines and not points:
        return {"type": "unknown", "title": title, "elements": []}
    for name, axis, scale in (("x", ax.xaxis, ax.get_xscale()), ("y", ax.yaxis, ax.get_yscale())):
        kind = kind_of(axis)
        labels[name + "_ticks"] = [position(axis, v) for v in axis.get_ticklocs()]
        labels[name + "_tick_labels"] = [t.get_text() for t in axis.get_ticklabels()]
        labels[name + "_scale"] = kind or scale
    if lines:
        elements = [series(ax, "Line", i, line, zip(line.get_xdata(orig=False), line.get_ydata(orig=False))) for i, line in enumerate(lines)]
    else:
        elements = [series(ax, "Scatter", i, c, c.get_offsets()) for i, c in enumerate(points)]
    return dict(labels, type="line" if lines else "scatter", title=title, elements=elements)


def unit(label):
    found = re.search(r"[(\[]([^()\[\]]+)[)\]]\s*$", label or "")
    return found.group(1) if found else None


def kind_of(axis):
    converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
    name = type(converter).__name__
    return "datetime" if "Date" in name else "categorical" if "Category" in name else None


def position(axis, value):
    """A number of an axis as what it stands for there."""
    kind = kind_of(axis)
    if kind == "datetime":
        from matplotlib.dates import num2date

        return num2date(value).isoformat()
    names = getattr(axis.units, "_mapping", None) if kind == "categorical" else None
    if names:
        for name, at in names.items():
            if at == value:
                return name
    return float(value)


def series(ax, kind, number, artist, points):
    label = artist.get_label()
    if not isinstance(label, str) or label.startswith("_"):
        label = "%s %d" % (kind, number)
    return {"label": label, "points": [(position(ax.xaxis, x), position(ax.yaxis, y)) for x, y in points]}


def bar(ax, container, patch):
    across = getattr(container, "orientation", "vertical") == "horizontal"
    axis = ax.yaxis if across else ax.xaxis
    middle = patch.get_y() + patch.get_height() / 2 if across else patch.get_x() + patch.get_width() / 2
    label = position(axis, middle)
    if not isinstance(label, str):
        ticks = dict(zip(axis.get_ticklocs(), [t.get_text() for t in axis.get_ticklabels()]))
        label = ticks.get(middle) or "%g" % middle
    group = container.get_label()
    value = patch.get_width() if across else patch.get_height()
    return {"label": label, "value": jsonable(value), "group": "" if group is None or str(group).startswith("_") else group}


def box(ax, number, stats):
    names = [t.get_text() for t in ax.get_xticklabels()]
    label = stats.get("label") or (names[number] if number < len(names) else "")
    keys = (("min", "whislo"), ("first_quartile", "q1"), ("median", "med"), ("third_quartile", "q3"), ("max", "whishi"))
    element = {"label": label, "outliers": [jsonable(v) for v in stats.get("fliers", ())]}
    element.update((name, jsonable(stats.get(key))) for name, key in keys)
    return element


def patch_pyplot(pyplot):
    pyplot.show = show_figures
    patch_boxes(pyplot)


def patch_boxes(_):
    axes = sys.modules["matplotlib.axes"].Axes
    original = axes.bxp

    def bxp(self, stats, *args, **kwargs):
        stats = list(stats)
        self._boxd_boxes = getattr(self, "_boxd_boxes", []) + stats
        return original(self, stats, *args, **kwargs)

    axes.bxp = bxp


def patch_image(module):
    """As in the kernel of E2B an image is a result when it is shown or saved."""
    save = module.Image.save

    def saved(self, *args, **kwargs):
        save(self, *args, **kwargs)
        ours = sys._getframe(1).f_globals.get("__name__", "").startswith("matplotlib")  # a figure is shown as one
        if busy and threading.current_thread() is threading.main_thread() and not saved.within and not ours:
            saved.within = True
            try:
                display(self)
            finally:
                saved.within = False

    saved.within = False
    module.Image.save = saved

    def shown(self, *_, **__):
        saved.within = True
        try:
            display(self)
        finally:
            saved.within = False

    module.Image.show = shown
    png = module.Image._repr_png_

    def quietly(self):
        before, saved.within = saved.within, True
        try:
            return png(self)
        finally:
            saved.within = before

    module.Image._repr_png_ = quietly


def patch_ipython(module):
    if hasattr(module, "display"):
        module.display = display
    if hasattr(module, "clear_output"):
        module.clear_output = lambda *_, **__: None


PATCHES = {
    "matplotlib.pyplot": patch_pyplot,
    "PIL.Image": patch_image,
    "IPython.display": patch_ipython,
    "IPython.core.display": patch_ipython,
}


class Shown:
    """Data that says what it is, as IPython.display has it."""

    def __init__(self, data=None, filename=None, url=None, **_):
        if filename is not None:
            with open(filename, "rb") as f:
                data = f.read()
            if self.mime.startswith("text/") or self.mime.endswith(("xml", "json", "javascript")):
                data = data.decode()
        elif data is None and url is not None:
            import urllib.request

            with urllib.request.urlopen(url) as answer:
                data = answer.read()
        self.data = data

    mime = "text/plain"

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {self.mime: self.data, "text/plain": repr(self)}


class Picture(Shown):
    mime = "image/png"

    def __init__(self, data=None, filename=None, url=None, **more):
        if isinstance(data, str):
            data, filename, url = (None, None, data) if "://" in data else (None, data, None)
        super().__init__(data, filename, url, **more)
        if self.data[:2] == b"\xff\xd8":
            self.mime = "image/jpeg"


class Stub(importlib.abc.Loader):
    """IPython for a box that has none: its display functions."""

    modules = ("IPython", "IPython.display", "IPython.core", "IPython.core.display")

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.get_ipython = lambda: None
        module.version_info = (0, 0)
        module.display, module.clear_output, module.DisplayObject, module.Image = display, lambda *_, **__: None, Shown, Picture
        for name, mime in (
            ("HTML", "text/html"),
            ("Markdown", "text/markdown"),
            ("SVG", "image/svg+xml"),
            ("Latex", "text/latex"),
            ("JSON", "application/json"),
            ("Javascript", "application/javascript"),
            ("Pretty", "text/plain"),
        ):
            setattr(module, name, type(name, (Shown,), {"mime": mime, "__module__": "IPython.display"}))


class Patching(importlib.abc.Loader):
    """A loader that changes the module when it is there, and leaves no trace in it."""

    def __init__(self, loader, patch):
        self.loader, self.patch = loader, patch

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        try:
            self.patch(module)
        except Exception:
            traceback.print_exc()


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in PATCHES and name not in Stub.modules:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                if name in PATCHES and spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = Patching(spec.loader, PATCHES[name])
                return spec
        if name in Stub.modules:
            return importlib.machinery.ModuleSpec(name, Stub(), is_package=name in ("IPython", "IPython.core"))
        return None


# Magics and shell lines: where Python finds a syntax error at a line that begins with % or !, that becomes a call.


def shell():
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def expand(line, names):
    """Put values where {expression} or $name stands, if there are such."""

    def braces(found):
        try:
            return str(eval(found.group(1), names))
        except Exception:
            return found.group(0)

    line = re.sub(r"\{([^{}]+)\}", braces, line)
    return re.sub(r"\$([A-Za-z_]\w*)", lambda m: str(names[m.group(1)]) if m.group(1) in names else m.group(0), line)


class Shell:
    """What get_ipython() returns: the few of its methods that notebooks call."""

    def __init__(self, names):
        self.user_ns = names

    def system(self, line):
        flush()
        self.user_ns["_exit_code"] = subprocess.call([shell(), "-c", expand(line, self.user_ns)], stdin=subprocess.DEVNULL)

    def getoutput(self, line):
        flush()
        done = subprocess.run([shell(), "-c", expand(line, self.user_ns)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.user_ns["_exit_code"] = done.returncode
        return done.stdout.decode(errors="replace").splitlines()

    def run_line_magic(self, name, line, **_):
        line = expand(line, self.user_ns) if name not in ("time", "timeit") else line
        magic = getattr(self, "line_" + name, None)
        if magic is None:
            raise NameError("no magic %%%s; there are %s" % (name, ", ".join(sorted(m[5:] for m in dir(self) if m.startswith("line_")))))
        return magic(line)

    def run_cell_magic(self, name, line, cell):
        magic = getattr(self, "cell_" + name, None)
        if magic is None:
            raise NameError("no magic %%%%%s; there are %s" % (name, ", ".join(sorted(m[5:] for m in dir(self) if m.startswith("cell_")))))
        return magic(line, cell)

    def run_cell(self, code, **_):
        return execute(code, "<string>", self.user_ns, quiet=True)

    def line_pip(self, line):
        flush()
        self.user_ns["_exit_code"] = subprocess.call([sys.executable, "-m", "pip"] + shlex.split(line), stdin=subprocess.DEVNULL)
        importlib.invalidate_caches()
        import site

        if site.ENABLE_USER_SITE and os.path.isdir(site.getusersitepackages()):
            site.addsitedir(site.getusersitepackages())

    def line_cd(self, line):
        os.chdir(os.path.expanduser(line.strip().strip("'\"") or "~"))
        print(os.getcwd())

    def line_pwd(self, line):
        return os.getcwd()

    def line_env(self, line):
        name, sign, value = line.strip().partition("=" if "=" in line else " ")
        if not name:
            return dict(os.environ)
        if not sign:
            return os.environ.get(name)
        os.environ[name.strip()] = value.strip()
        print("env: %s=%s" % (name.strip(), value.strip()))

    line_set_env = line_env

    def line_matplotlib(self, line):
        pass  # figures are shown anyway

    line_config = line_load_ext = line_reload_ext = line_autoreload = line_matplotlib

    def line_sx(self, line):
        return self.getoutput(line)

    line_system = line_sx

    def line_ls(self, line):
        self.system("ls " + line)

    def line_cat(self, line):
        self.system("cat " + line)

    def line_who(self, line):
        print("  ".join(sorted(n for n in self.user_ns if not n.startswith("_") and n not in ("display", "get_ipython"))))

    def line_run(self, line):
        import runpy

        argv = shlex.split(line)
        before, sys.argv = sys.argv, argv
        try:
            self.user_ns.update((k, v) for k, v in runpy.run_path(argv[0], run_name="__main__").items() if not k.startswith("__"))
        finally:
            sys.argv = before

    def line_time(self, line):
        return self.cell_time("", line)

    def line_timeit(self, line):
        found = re.match(r"^((?:-\w+\s+(?:\d+\s+)?)*)(.*)$", line)
        return self.cell_timeit(found.group(1), found.group(2))

    def line_lsmagic(self, line):
        print(" ".join("%" + m[5:] for m in sorted(dir(self)) if m.startswith("line_")))
        print(" ".join("%%" + m[5:] for m in sorted(dir(self)) if m.startswith("cell_")))

    def cell_time(self, line, cell):
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            return execute(cell, "<timed>", self.user_ns)
        finally:
            print("CPU time: %.3g s\nWall time: %.3g s" % (time.process_time() - cpu, time.perf_counter() - wall))

    def cell_timeit(self, line, cell):
        import timeit

        setup = re.sub(r"^(-\w+\s*(\d+\s*)?)*", "", line)  # options say how often; that is found out
        timer = timeit.Timer(cell, setup or "pass", globals=self.user_ns)
        number, took = timer.autorange()
        best = min([took] + timer.repeat(4, number)) / number
        print("%.4g s per loop (best of 5 runs, %d loops each)" % (best, number))

    def cell_bash(self, line, cell):
        flush()
        code = subprocess.run([shell(), "-c", cell], stdin=subprocess.DEVNULL).returncode
        self.user_ns["_exit_code"] = code
        if code != 0:
            raise subprocess.CalledProcessError(code, "bash")

    cell_sh = cell_bash

    def cell_writefile(self, line, cell):
        words = shlex.split(line)
        append = "-a" in words
        name = os.path.expanduser([w for w in words if w != "-a"][0])
        print(("Appending to " if append else "Overwriting " if os.path.exists(name) else "Writing ") + name)
        with open(name, "a" if append else "w") as f:
            f.write(cell)

    cell_file = cell_writefile

    def cell_capture(self, line, cell):
        import contextlib

        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            execute(cell, "<captured>", self.user_ns)

    def cell_html(self, line, cell):
        display({"text/html": cell, "text/plain": "<HTML>"}, raw=True)

    def cell_markdown(self, line, cell):
        display({"text/markdown": cell, "text/plain": "<Markdown>"}, raw=True)

    def cell_javascript(self, line, cell):
        display({"application/javascript": cell, "text/plain": "<Javascript>"}, raw=True)


LINE = re.compile(r"^(\s*)(?:([\w.,\[\]'\" ]+?)\s*=\s*)?(!!?|%)\s*(.*)$")


def replaced(line):
    """The line as Python, None if it is no magic."""
    found = LINE.match(line)
    if found is None:
        return None
    indent, target, sign, rest = found.groups()
    before = indent + (target + " = " if target else "")
    if sign == "%":
        name, _, rest = rest.partition(" ")
        if not re.match(r"^[A-Za-z_]\w*$", name):
            return None
        return "%sget_ipython().run_line_magic(%r, %r)" % (before, name, rest.strip())
    return "%sget_ipython().%s(%r)" % (before, "getoutput" if target or sign == "!!" else "system", rest)


def parsed(code, filename):
    """The syntax tree of code. Where it has magics they are made calls."""
    first, _, rest = code.lstrip().partition("\n")
    found = re.match(r"^%%([A-Za-z_]\w*)\s*(.*)$", first)
    if found:
        code = "get_ipython().run_cell_magic(%r, %r, %r)" % (found.group(1), found.group(2), rest)
    lines, problem = code.split("\n"), None
    for _ in range(1000):
        try:
            return compile("\n".join(lines), filename, "exec", FLAGS | future, dont_inherit=True)
        except SyntaxError as error:
            problem = problem or error
            at = (error.lineno or 0) - 1
            if error.filename != filename or not 0 <= at < len(lines):
                raise problem from None
            last = at  # a line goes on where a backslash ends it
            while lines[last].endswith("\\") and last + 1 < len(lines):
                last += 1
            whole = " ".join(line.rstrip("\\").strip() if i else line.rstrip("\\") for i, line in enumerate(lines[at : last + 1]))
            call = replaced(whole)
            if call is None:
                raise problem from None
            lines[at : last + 1] = [call] + [""] * (last - at)
    raise problem


# IPython, as ipykernel makes it for notebooks: its magics, shell lines, display functions and matplotlib backend. What it shows and
# what fails goes to boxd as with the kernel's own shell.


class Missing(Exception):
    """ipykernel cannot be imported."""


def notebook(names):
    """The shell of ipykernel, with names as its namespace. Nothing of the other shell is left then, unless it is Missing."""
    try:
        return notebook_shell(names)
    except Exception as problem:  # also of a package that does not fit this Python, or of a home directory that is full
        raise Missing("%s: %s" % (type(problem).__name__, problem)) from problem


def notebook_shell(names):
    global display
    import importlib.util

    if importlib.util.find_spec("ipykernel") is None:
        raise ImportError("No module named 'ipykernel'")
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.error import UsageError
    from IPython.core.formatters import DisplayFormatter
    from IPython.display import display as show
    from ipykernel.zmqshell import ZMQInteractiveShell
    from traitlets import Type
    from traitlets.config import Config

    class Formatter(DisplayFormatter):
        def format(self, value, include=None, exclude=None):
            data, metadata = super().format(value, include=include, exclude=exclude)
            if data:
                data.update(extra(value))
            return data, metadata

    class Hook(DisplayHook):
        def write_output_prompt(self):
            pass

        def write_format_data(self, format_dict, md_dict=None):
            flush()
            events.send(0, {"e": "result", "main": True, "data": {str(k): jsonable(v) for k, v in format_dict.items()}})

        def finish_displayhook(self):
            self._is_active = False

    class Publisher(DisplayPublisher):
        def publish(self, data, *_, **__):
            flush()
            events.send(0, {"e": "result", "main": False, "data": {str(k): jsonable(v) for k, v in data.items()}})

        def clear_output(self, wait=False):
            pass

    class BoxShell(ZMQInteractiveShell):
        displayhook_class = Type(Hook)
        display_pub_class = Type(Publisher)
        reported = None

        def init_display_formatter(self):
            self.display_formatter = Formatter(parent=self)
            self.configurables.append(self.display_formatter)

        def _showtraceback(self, etype, evalue, stb):
            flush()
            self.reported = evalue
            text = self.InteractiveTB.stb2text(stb)
            events.send(0, {"e": "error", "name": getattr(etype, "__name__", str(etype)), "value": shortened(said(evalue)), "traceback": shortened(text)})

        def ask_exit(self):
            raise SystemExit

        def enable_gui(self, gui=None):
            if gui not in (None, "inline", "agg"):
                raise UsageError("a sandbox has no windows: %s" % gui)

    import warnings

    warnings.filterwarnings("ignore", message="To exit: use", category=UserWarning)  # which is about a terminal
    config = Config()
    config.HistoryManager.enabled = False  # no file, and no thread that writes it
    config.InteractiveShell.colors = "NoColor"
    config.InteractiveShell.banner1 = ""
    found = BoxShell.instance(config=config, user_module=sys.modules["__main__"])
    PATCHES.clear()
    PATCHES.update({"matplotlib.pyplot": patch_boxes, "PIL.Image": patch_image})
    Stub.modules = ()
    names.pop("display", None)
    if importlib.util.find_spec("matplotlib_inline") is not None:
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    display = show
    return found


def extra(value):
    """What E2B's clients show of a value beyond what IPython makes of it."""
    found, module = {}, sys.modules.get("pandas")
    try:
        if is_figure(value):
            found["e2b/chart"] = jsonable(chart(value))
        elif module is not None and isinstance(value, getattr(module, "DataFrame", ())):
            found["e2b/data"] = {str(k): [jsonable(v) for v in column] for k, column in value.items()}
    except Exception:
        pass  # what IPython has made of it is what counts
    return found


def run_notebook(code):
    """Run code in ipykernel's shell, which tells of results and errors itself."""
    ipython.reported = None
    done = ipython.run_cell(code, store_history=True)
    flush()
    error = done.error_in_exec or done.error_before_exec
    if os.getpid() != PID and error is not None:
        raise error  # the code has forked
    if error is not None and ipython.reported is not error:
        report(error)


# Execution.

FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
FUTURE = 0
for feature in __import__("__future__").all_feature_names:
    FUTURE |= getattr(__import__("__future__"), feature).compiler_flag
future = 0  # what the code has imported from __future__ holds for what comes later
loop = None


def await_(coroutine):
    global loop
    import asyncio

    if loop is None or loop.is_closed():
        loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except KeyboardInterrupt:
        if not task.done():
            task.cancel()
            try:
                loop.run_until_complete(asyncio.wait([task], timeout=1))
            except BaseException:
                pass
        raise


def evaluate(tree, filename, mode, names):
    global future
    code = compile(tree, filename, mode, (FLAGS & ~ast.PyCF_ONLY_AST) | future, dont_inherit=True)
    future |= code.co_flags & FUTURE
    value = eval(code, names)
    return await_(value) if code.co_flags & inspect.CO_COROUTINE else value


def execute(code, filename, names, quiet=False):
    """Run code, and return the value of an expression at its end."""
    code = textwrap.dedent(code) if code[:1].isspace() else code
    linecache.cache[filename] = (len(code), None, code.splitlines(True), filename)
    body = parsed(code, filename).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) and not quiet else None
    if body:
        evaluate(ast.Module(body=body, type_ignores=[]), filename, "exec", names)
    if last is None:
        return None
    value = evaluate(ast.Expression(body=last.value), filename, "eval", names)
    return None if code.rstrip().endswith(";") else value


def clean(error, seen):
    """Take what is the kernel's out of the traceback of an error and of those before it."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    frames, tb = [], error.__traceback__
    while tb is not None:
        frames.append(tb)
        tb = tb.tb_next
    first = 0  # what the kernel has called to run the code
    while first < len(frames) and not frames[first].tb_frame.f_code.co_filename.startswith("<cell "):
        first += 1
    kept = None
    for tb in reversed(frames[first:]):
        if tb.tb_frame.f_globals is not globals():
            kept = types.TracebackType(kept, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
    error.__traceback__ = kept
    clean(error.__cause__, seen)
    clean(error.__context__, seen)


def said(error):
    try:
        return str(error)
    except Exception:
        return "(it cannot be shown)"


def report(error):
    """Tell of an error that has ended the code, without the frames of the kernel."""
    try:
        clean(error, set())
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:
        text = "(its traceback cannot be shown)"
    events.send(0, {"e": "error", "name": type(error).__name__, "value": shortened(said(error)), "traceback": shortened(text)})


def prepare():
    """Put back what an execution before this one may have taken away."""
    for fd in (1, 2):
        try:
            same = os.path.sameopenfile(fd, events.fds[fd - 1])
        except OSError:
            same = False
        if not same:
            os.dup2(events.fds[fd - 1], fd)
        try:
            own_streams[fd].flush()
        except Exception:  # there is none yet, or the code has detached its buffer
            own_streams[fd] = Stream(fd, "<stdout>" if fd == 1 else "<stderr>")
    sys.stdout = sys.__stdout__ = own_streams[1]
    sys.stderr = sys.__stderr__ = own_streams[2]
    signal.signal(signal.SIGINT, on_interrupt)


def run(request):
    global busy, late, count
    count += 1
    if is_notebook:
        count = ipython.execution_count
    filename, names = "<cell %d>" % count, main.__dict__
    prepare()
    events.both("begin", id=request["id"], count=count)
    before = {}
    for name, value in (request.get("env") or {}).items():
        before[name] = os.environ.get(name)
        os.environ[name] = value
    try:
        try:
            if missing is not None:
                raise missing
            busy, late = True, False
            value = run_notebook(request["code"]) if is_notebook else execute(request["code"], filename, names)
            flush()
            if value is not None:
                builtins._ = names["_"] = value
                if is_figure(value):
                    sys.modules["matplotlib.pyplot"].close(value) if "matplotlib.pyplot" in sys.modules else None
                show(value, main=True)
            if not is_notebook:
                show_figures()
        finally:
            busy = False
    except BaseException as error:
        if os.getpid() != PID:
            code = getattr(error, "code", 1) if isinstance(error, SystemExit) else 1
            os._exit(code if isinstance(code, int) else 0 if code is None else 1)
        flush()
        report(error)
        close_figures()
    if os.getpid() != PID:
        flush()
        os._exit(0)  # the code has forked, and this is not the kernel
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    events.both("end", id=request["id"])


def close_figures():
    pyplot = sys.modules.get("matplotlib.pyplot")
    try:
        pyplot.close("all")
    except Exception:
        pass


count = 0
own_streams = {}
events = Events()
requests = os.fdopen(private(0), "rb")
nothing = os.open(os.devnull, os.O_RDWR)
os.dup2(nothing, 0)
os.close(nothing)
signal.signal(signal.SIGINT, on_interrupt)

# The code is the module __main__, as it is for any program.
main = types.ModuleType("__main__")
main.__dict__.update(__builtins__=builtins, display=display, get_ipython=None)
ipython = Shell(main.__dict__)
main.get_ipython = lambda: ipython
sys.modules["__main__"] = main
sys.argv = [""]
is_notebook, missing = False, None
if WANTED != "own":
    prepare()
    try:
        ipython, is_notebook = notebook(main.__dict__), True
    except Missing as problem:
        if WANTED != "auto":
            missing = ImportError("the operator's python_kernel is ipykernel, and python3 of the sandbox cannot use it: %s" % problem)
sys.path.insert(0, "")
sys.meta_path.insert(0, Finder())
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("PYTHONUNBUFFERED", "1")  # of programs that the code starts: their output is read as it comes

for line in requests:
    try:
        request = json.loads(line)
        kind, _ = request["op"], request["id"]
    except (ValueError, TypeError, KeyError):
        continue  # the beginning of one whose sender has gone
    if kind == "run":
        run(request)
    elif kind == "sync":
        prepare()
        events.both("synced", id=request["id"])

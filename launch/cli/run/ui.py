"""``pslib ui``: the page of a run, in the browser."""

from __future__ import annotations

import threading

import rich_click as click

from launch.cli.command import FILE, command, flag, key_option, option, where_options
from pslib.errors import EXIT_DONE, ConfigurationError


@command(
    "ui",
    """
pslib ui runs/clicks
pslib ui runs/clicks --open
pslib ui tcp://10.0.0.1:7000 --cluster-id 5f3a91c0 --keys keys/admin.keys
pslib ui runs/clicks --host 0.0.0.0 --port 8080 --token-file page.token
""",
)
@where_options
@key_option("a key of the cluster; stacks of processes need an administrator's")
@option("--host", "HOST", "where to listen; beyond loopback a token is needed", default="127.0.0.1")
@option("--port", "N", "where to listen (default: any free)", click.IntRange(0, 65535), default=0)
@option("--token-file", "FILE", "the page's token, made if there is none; needed on loopback too", FILE)
@flag("--open", "open it in the browser", to="opens")
def ui_command(
    where: str | None,
    cluster_id: str | None,
    key_file: str | None,
    host: str,
    port: int,
    token_file: str | None,
    opens: bool,
) -> int:
    """Show a run on a page in the browser: one that goes on, or its files when it has ended.

    It prints the page's address and serves it until Ctrl-C.
    """
    from pslib.monitor.page_server import PageServer, check_page, token_of
    from pslib.monitor.sources import open_run

    if where is None:
        raise ConfigurationError("which run? give its folder, or the coordinator's address")
    check_page(host, port)
    token = None if token_file is None else token_of(token_file)
    source = open_run(where, cluster_id, key_file)
    try:
        page = PageServer(source, host, port, token)
        try:
            print(page.url, flush=True)
            if opens:
                import webbrowser

                webbrowser.open(page.url)
            threading.Event().wait()
        except KeyboardInterrupt:
            return EXIT_DONE
        finally:
            page.close()
    finally:
        source.close()
    return EXIT_DONE

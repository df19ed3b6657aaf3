"""Route the requests of probes and monitoring, on a port of their own: only paths about this process, for any host name."""

from torpor.ports import Address
from torpor.proxy import pages
from torpor.proxy.gate import Forward, Verdict
from torpor.proxy.host_router import OF_THIS_PROCESS, served_path
from torpor.proxy.outcomes import RequestOutcome
from torpor.proxy.request_head import RequestHead


class MonitoringGate:
    """Implements `proxy.gate.Gate`. Probes and monitoring send the address of the process as its host name."""

    def __init__(self, here: Address) -> None:
        """`here`: where this process answers for itself."""
        self._forward = Forward(
            here,
            RequestOutcome.PLATFORM,
            sorry=pages.reply(pages.no_platform(), as_html=False),
            too_late=pages.reply(pages.no_platform(504), as_html=False),
            to_workspace=False,
        )

    def judge(self, head: RequestHead, client: str) -> Verdict:
        if served_path(head.target).startswith(OF_THIS_PROCESS) and not head.is_upgrade:
            return self._forward
        return pages.reply(pages.not_served(), as_html=False)

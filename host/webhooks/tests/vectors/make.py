#!/usr/bin/env python3
"""Writes vectors.json: requests as providers send them, and what must become of each.

The signatures are those of Python's own hmac, and of PyPI's `cryptography` for Ed25519; PyPI's
`standardwebhooks` and `stripe`, which are their providers' own, have to accept theirs:

    python3 -m venv v && v/bin/pip install standardwebhooks stripe cryptography
    v/bin/python make.py
"""

import base64
import hashlib
import hmac
import json
from pathlib import Path
from unittest import mock

import standardwebhooks
import stripe
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

NOW = 1_772_352_000  # 2026-03-01T08:00:00Z
SECRET = "it lies under the third plank"
OTHER = "it was under the fourth plank"
KEY = bytes(range(1, 33))
OTHER_KEY = bytes(range(101, 133))
WHSEC = "whsec_" + base64.b64encode(KEY).decode()
OTHER_WHSEC = "whsec_" + base64.b64encode(OTHER_KEY).decode()
ED25519 = Ed25519PrivateKey.from_private_bytes(bytes(range(201, 233)))
WHPK = "whpk_" + base64.b64encode(
    ED25519.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
).decode()

vectors = []


def vector(name, verify, secrets, headers, body, expect, query=None, **settings):
    vectors.append(
        {
            "name": name,
            "verify": verify,
            "secrets": secrets,
            "settings": settings,
            "headers": headers,
            "query": query,
            "body": body,
            "now": NOW,
            "expect": expect,
        }
    )


def mac(secret, text, algorithm=hashlib.sha256):
    secret = secret.encode() if isinstance(secret, str) else secret
    return hmac.new(secret, text.encode(), algorithm)


def b64(mac):
    return base64.b64encode(mac.digest()).decode()


JSON = ["content-type", "application/json"]

# GitHub: the body alone is signed.
body = '{"action":"opened","issue":{"number":7,"title":"Où est le phare ? 🗼"},"repository":{"full_name":"harbour/dock"}}'


def github(body, secret=SECRET, event="issues", delivery="72d3162e-cc78-11e3-81ab-4c9367dc0958"):
    return [
        JSON,
        ["x-github-event", event],
        ["x-github-delivery", delivery],
        ["x-hub-signature", "sha1=" + mac(secret, body, hashlib.sha1).hexdigest()],
        ["x-hub-signature-256", "sha256=" + mac(secret, body).hexdigest()],
    ]


issue = {
    "type": "issues.opened",
    "id": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
    "source": "https://github.com/harbour/dock",
    "duplicate_key": hashlib.sha256(body.encode()).hexdigest(),
}
vector("github", "github", [SECRET], github(body), body, issue)
vector("github, the newer of two secrets", "github", [SECRET, OTHER], github(body, OTHER), body, issue)
vector("github, the older of two secrets", "github", [OTHER, SECRET], github(body), body, issue)
vector("github, another secret", "github", [OTHER], github(body), body, "signature")
only_sha1 = [header for header in github(body) if header[0] != "x-hub-signature-256"]
vector("github, only SHA-1", "github", [SECRET], only_sha1, body, "signature")
twice = github(body) + [github(body)[-1]]
vector("github, the signature twice", "github", [SECRET], twice, body, "signature")
sha1_in_its_place = only_sha1 + [["x-hub-signature-256", only_sha1[-1][1]]]
vector("github, SHA-1 in the place of SHA-256", "github", [SECRET], sha1_in_its_place, body, "signature")
vector("github, an empty signature", "github", [SECRET], only_sha1 + [["x-hub-signature-256", "sha256="]], body, "signature")
push = '{"ref":"refs/heads/main","repository":{"full_name":"harbour/dock"}}'
vector("github, no action", "github", [SECRET], github(push, event="push"), push,
       {"type": "push", "source": "https://github.com/harbour/dock"})
member = '{"action":"member_added","organization":{"login":"harbour"}}'
vector("github, no repository", "github", [SECRET], github(member, event="organization"), member,
       {"type": "organization.member_added", "source": "https://github.com/harbour"})
ping = '{"zen":"Keep it logically awesome.","hook_id":1}'
vector("github, a ping", "github", [SECRET], github(ping, event="ping"), ping, "ping")
vector("github, a ping that is wanted", "github", [SECRET], github(ping, event="ping"), ping,
       {"type": "ping", "source": "https://github.com/"}, ping=True)
no_event = [header for header in github(body) if header[0] != "x-github-event"]
vector("github, no event", "github", [SECRET], no_event, body, "invalid")
vector("github, the event twice", "github", [SECRET], github(body) + [["x-github-event", "push"]], body, "invalid")
form = "payload=%7B%22action%22%3A%22opened%22%7D"
as_form = [["content-type", "application/x-www-form-urlencoded"]] + github(form)[1:]
vector("github, a form", "github", [SECRET], as_form, form, "invalid")

# Stripe: time and body are signed.
body = '{"id":"evt_1","object":"event","account":"acct_7","type":"invoice.paid","created":1772351999,"data":{"object":{"amount":1200}}}'


def stripe_header(body, secrets, time=NOW, more=""):
    signatures = ",".join("v1=" + mac(secret, f"{time}.{body}").hexdigest() for secret in secrets)
    return [JSON, ["stripe-signature", f"t={time},{signatures}{more}"]]


def stripes_own(headers, body, secret, time=NOW):
    with mock.patch("time.time", lambda: time):
        stripe.Webhook.construct_event(body, headers[1][1], secret, tolerance=300)


paid = {
    "type": "invoice.paid",
    "id": "evt_1",
    "source": "https://stripe.com/acct_7",
    "time": "2026-03-01T07:59:59Z",
    "duplicate_key": None,
}
headers = stripe_header(body, [WHSEC])
stripes_own(headers, body, WHSEC)
vector("stripe", "stripe", [WHSEC], headers, body, paid)
headers = stripe_header(body, [OTHER_WHSEC, WHSEC], more=",v0=" + "ab" * 32)
stripes_own(headers, body, WHSEC)
vector("stripe, two signatures", "stripe", [WHSEC], headers, body, paid)
vector("stripe, two secrets", "stripe", [OTHER_WHSEC, WHSEC], stripe_header(body, [WHSEC]), body, paid)
vector("stripe, another secret", "stripe", [OTHER_WHSEC], stripe_header(body, [WHSEC]), body, "signature")
vector("stripe, missing", "stripe", [WHSEC], [JSON], body, "signature")
vector("stripe, only v0", "stripe", [WHSEC],
       [JSON, ["stripe-signature", f"t={NOW},v0=" + mac(WHSEC, f"{NOW}.{body}").hexdigest()]], body, "signature")
vector("stripe, twice", "stripe", [WHSEC], stripe_header(body, [WHSEC]) + stripe_header(body, [WHSEC])[1:], body, "signature")
headers = stripe_header(body, [WHSEC])
headers[1][1] += f",t={NOW + 1}"
vector("stripe, two times", "stripe", [WHSEC], headers, body, "signature")
for seconds, expect in [(-300, paid), (300, paid), (-301, "stale"), (301, "stale"), (-86_400, "stale")]:
    vector(f"stripe, {seconds} s", "stripe", [WHSEC], stripe_header(body, [WHSEC], NOW + seconds), body, expect)
vector("stripe, 1 h with 2 h of tolerance", "stripe", [WHSEC], stripe_header(body, [WHSEC], NOW - 3600), body, paid,
       tolerance=7200)
vector("stripe, a time that is none", "stripe", [WHSEC], stripe_header(body, [WHSEC], "soon"), body, "signature")

# Standard Webhooks: id, time and body are signed.
body = '{"type":"user.created","timestamp":"2026-03-01T07:59:58.5Z","data":{"id":9007199254740993}}'


def standard(body, key=KEY, time=NOW, id="msg_2KWPBgLlAfxdpx2AI54pPJ85f4W", prefix="webhook", signatures=None):
    signed = f"{id}.{time}.{body}"
    signatures = signatures or [f"v1,{b64(mac(key, signed))}"]
    return [
        JSON,
        [f"{prefix}-id", id],
        [f"{prefix}-timestamp", str(time)],
        [f"{prefix}-signature", " ".join(signatures)],
    ]


def asymmetric(body, time=NOW, id="msg_2KWPBgLlAfxdpx2AI54pPJ85f4W"):
    return "v1a," + base64.b64encode(ED25519.sign(f"{id}.{time}.{body}".encode())).decode()


def standards_own(headers, body, secret):
    import datetime

    class Then(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.fromtimestamp(NOW, tz)

    with mock.patch("standardwebhooks.webhooks.datetime", Then):
        standardwebhooks.Webhook(secret).verify(body, dict(headers))


created = {
    "type": "user.created",
    "id": "msg_2KWPBgLlAfxdpx2AI54pPJ85f4W",
    "source": "/webhooks",
    "time": "2026-03-01T07:59:58.5Z",
    "duplicate_key": None,
}
standards_own(standard(body), body, WHSEC)
vector("standard", "standard", [WHSEC], standard(body), body, created)
vector("standard, a secret without its prefix", "standard", [WHSEC.removeprefix("whsec_")], standard(body), body, created)
vector("standard, a raw secret", "standard", ["raw:" + SECRET], standard(body, SECRET), body, created)
vector("standard of svix", "standard", [WHSEC], standard(body, prefix="svix"), body, created)
mixed = standard(body, prefix="svix") + [["webhook-id", "msg_2"]]
vector("standard of svix, with an id that is not signed", "standard", [WHSEC], mixed, body, "signature")
both = [f"v1,{b64(mac(OTHER_KEY, 'x'))}", asymmetric(body), f"v1,{b64(mac(KEY, f'msg_2KWPBgLlAfxdpx2AI54pPJ85f4W.{NOW}.{body}'))}"]
standards_own(standard(body, signatures=both), body, WHSEC)
vector("standard, several signatures", "standard", [WHSEC], standard(body, signatures=both), body, created)
vector("standard, several signatures, verified by the public key", "standard", [WHPK], standard(body, signatures=both), body, created)
vector("standard with Ed25519", "standard", [WHPK], standard(body, signatures=[asymmetric(body)]), body, created)
vector("standard, a public key and a secret", "standard", [OTHER_WHSEC, WHPK], standard(body, signatures=[asymmetric(body)]), body, created)
vector("standard, an HMAC under the public key", "standard", [WHPK], standard(body, base64.b64decode(WHPK[5:])), body, "signature")
vector("standard with Ed25519, called v1", "standard", [WHPK],
       standard(body, signatures=[asymmetric(body).replace("v1a,", "v1,")]), body, "signature")
vector("standard, another secret", "standard", [OTHER_WHSEC], standard(body), body, "signature")
vector("standard, another version alone", "standard", [WHSEC], standard(body, signatures=["v2," + "A" * 43 + "="]), body, "signature")
for name in ["webhook-id", "webhook-timestamp", "webhook-signature"]:
    without = [header for header in standard(body) if header[0] != name]
    vector(f"standard without {name}", "standard", [WHSEC], without, body, "signature")
    twice = standard(body) + [header for header in standard(body) if header[0] == name]
    vector(f"standard with {name} twice", "standard", [WHSEC], twice, body, "signature")
for seconds, expect in [(-300, created), (300, created), (-301, "stale"), (301, "stale")]:
    vector(f"standard, {seconds} s", "standard", [WHSEC], standard(body, time=NOW + seconds), body, expect)
vector("standard, a time that is none", "standard", [WHSEC], standard(body, time=f"{NOW}.5"), body, "signature")

# Slack: version, time and body are signed.
body = '{"type":"event_callback","team_id":"T0001","event_id":"Ev08","event_time":1772351990,"event":{"type":"app_mention","text":"ahoy"}}'


def slack(body, secret=SECRET, time=NOW):
    return [
        JSON,
        ["x-slack-request-timestamp", str(time)],
        ["x-slack-signature", "v0=" + mac(secret, f"v0:{time}:{body}").hexdigest()],
    ]


mention = {
    "type": "slack.app_mention",
    "id": "Ev08",
    "source": "https://slack.com/T0001",
    "time": "2026-03-01T07:59:50Z",
    "duplicate_key": None,
}
vector("slack", "slack", [SECRET], slack(body), body, mention)
vector("slack, two secrets", "slack", [OTHER, SECRET], slack(body), body, mention)
vector("slack, another secret", "slack", [OTHER], slack(body), body, "signature")
for name in ["x-slack-request-timestamp", "x-slack-signature"]:
    without = [header for header in slack(body) if header[0] != name]
    vector(f"slack without {name}", "slack", [SECRET], without, body, "signature")
    twice = slack(body) + [header for header in slack(body) if header[0] == name]
    vector(f"slack with {name} twice", "slack", [SECRET], twice, body, "signature")
for seconds, expect in [(-300, mention), (300, mention), (-301, "stale"), (301, "stale")]:
    vector(f"slack, {seconds} s", "slack", [SECRET], slack(body, time=NOW + seconds), body, expect)
challenge = '{"type":"url_verification","token":"x","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"}'
vector("slack, a challenge", "slack", [SECRET], slack(challenge), challenge,
       "challenge 3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P")
vector("slack, a challenge of somebody else", "slack", [SECRET], slack(challenge, OTHER), challenge, "signature")
limited = '{"type":"app_rate_limited","team_id":"T0001","minute_rate_limited":1772351940}'
vector("slack, no event", "slack", [SECRET], slack(limited), limited,
       {"type": "slack.app_rate_limited", "id": hashlib.sha256(limited.encode()).hexdigest()})

# Shopify: the body alone is signed.
body = '{"id":820982911946154508,"total_price":"1.20"}'


def shopify(body, secret=SECRET, topic="orders/create"):
    return [
        JSON,
        ["x-shopify-topic", topic],
        ["x-shopify-shop-domain", "tide-tables.myshopify.com"],
        ["x-shopify-webhook-id", "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043"],
        ["x-shopify-triggered-at", "2026-03-01T07:59:57.123456789Z"],
        ["x-shopify-hmac-sha256", b64(mac(secret, body))],
    ]


order = {
    "type": "orders/create",
    "id": "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043",
    "source": "https://tide-tables.myshopify.com",
    "time": "2026-03-01T07:59:57.123456Z",
    "duplicate_key": "orders/create " + hashlib.sha256(body.encode()).hexdigest(),
}
vector("shopify", "shopify", [SECRET], shopify(body), body, order)
vector("shopify, two secrets", "shopify", [OTHER, SECRET], shopify(body), body, order)
vector("shopify, another secret", "shopify", [OTHER], shopify(body), body, "signature")
vector("shopify, missing", "shopify", [SECRET], shopify(body)[:-1], body, "signature")
vector("shopify, twice", "shopify", [SECRET], shopify(body) + shopify(body)[-1:], body, "signature")
vector("shopify, hex", "shopify", [SECRET],
       shopify(body)[:-1] + [["x-shopify-hmac-sha256", mac(SECRET, body).hexdigest()]], body, "signature")

# GitLab: the secret itself comes with the request.
body = '{"object_kind":"push","project":{"web_url":"https://gitlab.example.com/harbour/dock"}}'


def gitlab(token=SECRET, key="f5e5f430-f57b-4e6e-9fac-d9128cd7232f"):
    headers = [
        JSON,
        ["x-gitlab-event", "Push Hook"],
        ["x-gitlab-event-uuid", "13792a34-cac6-4fda-95a8-c58e00a3954e"],
        ["x-gitlab-instance", "https://gitlab.example.com"],
        ["x-gitlab-token", token],
    ]
    return headers + ([["idempotency-key", key]] if key else [])


pushed = {
    "type": "push",
    "id": "f5e5f430-f57b-4e6e-9fac-d9128cd7232f",
    "source": "https://gitlab.example.com/harbour/dock",
    "duplicate_key": None,
}
vector("gitlab", "gitlab", [SECRET], gitlab(), body, pushed)
vector("gitlab, two secrets", "gitlab", [OTHER, SECRET], gitlab(), body, pushed)
vector("gitlab before 17.4", "gitlab", [SECRET], gitlab(key=None), body,
       pushed | {"id": "13792a34-cac6-4fda-95a8-c58e00a3954e"})
group = '{"event_name":"user_add_to_group","group_path":"harbour"}'
vector("gitlab, of a group", "gitlab", [SECRET], gitlab(), group,
       {"type": "user_add_to_group", "source": "https://gitlab.example.com"})
vector("gitlab, another secret", "gitlab", [OTHER], gitlab(), body, "signature")
vector("gitlab, a part of the secret", "gitlab", [SECRET], gitlab(SECRET[:-1]), body, "signature")
vector("gitlab, more than the secret", "gitlab", [SECRET], gitlab(SECRET + "x"), body, "signature")
vector("gitlab, missing", "gitlab", [SECRET], [header for header in gitlab() if header[0] != "x-gitlab-token"], body, "signature")
vector("gitlab, twice", "gitlab", [SECRET], gitlab() + [["x-gitlab-token", SECRET]], body, "signature")

# Anybody's HMAC.
body = "tide=high&berth=3"
plain = ["content-type", "text/plain"]
own = dict(header="x-signature", type="tide.turned", source="/tides", id="{header:x-id}")
vector("hmac over the body, in hex", "hmac", [SECRET],
       [plain, ["x-id", "1"], ["x-signature", mac(SECRET, body).hexdigest().upper()]], body,
       {"type": "tide.turned", "id": "1", "source": "/tides", "duplicate_key": hashlib.sha256(body.encode()).hexdigest()},
       **own)
vector("hmac with SHA-512, in base64, after a prefix", "hmac", ["base64:" + base64.b64encode(KEY).decode()],
       [plain, ["x-id", "1"], ["x-signature", "hmac " + b64(mac(KEY, body, hashlib.sha512))]], body,
       {"id": "1", "duplicate_key": None},
       algorithm="sha512", encoding="base64", prefix="hmac ", duplicate_key="", **own)
signed = own | dict(signed="{header:x-id}.{header:x-time}.{query:berth}.{body}", timestamp="{header:x-time}")
of_berth_3 = mac(SECRET, f"1.{NOW}.3 b.{body}").hexdigest()
timed = [plain, ["x-id", "1"], ["x-time", str(NOW)], ["x-signature", of_berth_3]]
vector("hmac over headers, address and body", "hmac", [SECRET], timed, body, {"id": "1", "duplicate_key": None},
       query="a=b&berth=3%20b", **signed)
vector("hmac, another address", "hmac", [SECRET], timed, body, "signature", query="berth=4", **signed)
vector("hmac, an address with two of them", "hmac", [SECRET], timed, body, "signature",
       query="berth=3%20b&berth=4", **signed)
for seconds, expect in [(-300, {"id": "1"}), (-301, "stale"), (301, "stale")]:
    time = NOW + seconds
    signature = mac(SECRET, f"1.{time}.3 b.{body}").hexdigest()
    vector(f"hmac, {seconds} s", "hmac", [SECRET],
           [plain, ["x-id", "1"], ["x-time", str(time)], ["x-signature", signature]], body, expect,
           query="berth=3%20b", **signed)

# Nothing is verified.
vector("unverified", "unverified", [], [plain, ["x-id", "1"]], body,
       {"type": "tide.turned", "id": "1", "source": "/tides", "duplicate_key": None},
       **{name: own[name] for name in ["type", "source", "id"]})
vector("token, none shown", "token", [], [plain, ["x-id", "1"]], body, "unauthenticated",
       **{name: own[name] for name in ["type", "source", "id"]})

target = Path(__file__).with_name("vectors.json")
target.write_text("[\n" + ",\n".join(json.dumps(vector, ensure_ascii=False) for vector in vectors) + "\n]\n")
print(f"{len(vectors)} vectors in {target.name}")

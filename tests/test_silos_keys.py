"""Keys of sites: two have in common what no third one knows, and sealed messages say who sent them, and when."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from proxfed.errors import InputError
from proxfed.silos.protection.keyring import Keyring, SiteKey, fingerprint

KEYS = {name: SiteKey(X25519PrivateKey.generate()) for name in ("a", "b", "c")}
SAID = {name: key.introduction() for name, key in KEYS.items()}


def ring(me: str, job: str = "job", said: dict[str, bytes] = SAID) -> Keyring:
    return Keyring.of(KEYS[me], me, job, said)


def test_both_ends_have_the_same_and_nobody_else() -> None:
    a, b, c = (ring(name) for name in "abc")
    assert a.pair("b", b"x") == b.pair("a", b"x")
    others = [a.pair("b", b"y"), a.pair("c", b"x"), b.pair("c", b"x"), ring("a", "another job").pair("b", b"x")]
    assert len({a.pair("b", b"x"), *others}) == 5
    assert c.pair("a", b"x") == a.pair("c", b"x")


def test_the_secret_is_that_of_x25519() -> None:
    a, b = KEYS["a"], KEYS["b"]
    assert a.shared(b.public) == b.private.exchange(a.private.public_key())


def test_a_run_that_is_begun_again_has_other_keys() -> None:
    again = SAID | {"c": KEYS["c"].introduction()}
    assert ring("a").pair("b", b"x") != ring("a", said=again).pair("b", b"x")
    assert ring("a", said=again).pair("b", b"x") == ring("b", said=again).pair("a", b"x")


@given(body=st.binary(max_size=200), t=st.integers(0, 2**40), k=st.integers(0, 2**20))
def test_sealed_and_unsealed(body: bytes, t: int, k: int) -> None:
    sealed = ring("a").seal("b", t, k, body)
    assert ring("b").unseal("a", t, k, sealed) == body
    assert len(sealed) == len(body) + 28
    assert sealed == ring("a").seal("b", t, k, body)


def test_another_content_or_place_never_meets_a_nonce_again() -> None:
    a, b = ring("a"), ring("b")
    sealed = [a.seal("b", t, k, body) for t in range(3) for k in range(3) for body in (b"", b"one", b"two")]
    sealed += [b.seal("a", t, k, b"one") for t in range(3) for k in range(3)]
    assert len({message[:12] for message in sealed}) == len(sealed)


@pytest.mark.parametrize("place", [("c", "a", 1, 2), ("b", "c", 1, 2), ("b", "a", 2, 2), ("b", "a", 1, 1)])
def test_what_belongs_elsewhere_is_refused(place: tuple[str, str, int, int]) -> None:
    me, sender, t, k = place
    sealed = ring("a").seal("b", 1, 2, b"content")
    with pytest.raises(InputError, match="is not what"):
        ring(me).unseal(sender, t, k, sealed)


def test_no_message_comes_back_to_its_sender() -> None:
    with pytest.raises(InputError, match="is not what"):
        ring("a").unseal("b", 1, 2, ring("a").seal("b", 1, 2, b"content"))


@given(place=st.integers(0, 34), bit=st.integers(0, 7))
def test_a_changed_bit_is_refused(place: int, bit: int) -> None:
    sealed = bytearray(ring("a").seal("b", 1, 2, b"content"))
    sealed[place] ^= 1 << bit
    with pytest.raises(InputError, match="is not what"):
        ring("b").unseal("a", 1, 2, bytes(sealed))


def test_too_short_a_message_is_refused() -> None:
    with pytest.raises(InputError, match="too short"):
        ring("b").unseal("a", 1, 2, b"short")


def test_a_key_of_another_in_ones_own_place_is_noticed() -> None:
    with pytest.raises(InputError, match="not its own"):
        ring("a", said=SAID | {"a": SAID["b"]})
    with pytest.raises(InputError, match="has 3 bytes"):
        ring("a", said=SAID | {"b": b"abc"})
    with pytest.raises(InputError, match="not a public key"):
        ring("a", said=SAID | {"b": bytes(80)}).pair("b", b"x")
    with pytest.raises(InputError, match="'d' is not known"):
        ring("a").pair("d", b"x")


def test_the_file_of_a_key(tmp_path: Path) -> None:
    path = tmp_path / "site.key"
    made = SiteKey.create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert SiteKey.read(path).public == made.public
    assert SiteKey.read(path).secret(b"x") == made.secret(b"x") != made.secret(b"y")
    with pytest.raises(InputError, match="is not replaced"):
        SiteKey.create(path)
    path.chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        SiteKey.read(path)
    path.chmod(0o600)
    path.write_text("nonsense")
    with pytest.raises(InputError, match="is not a key"):
        SiteKey.read(path)
    with pytest.raises(InputError, match="cannot read"):
        SiteKey.read(tmp_path / "none.key")


def test_a_key_of_another_kind(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = tmp_path / "site.key"
    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(*pem))
    path.chmod(0o600)
    with pytest.raises(InputError, match="another kind"):
        SiteKey.read(path)


def test_fingerprints_are_what_people_can_compare() -> None:
    assert fingerprint(b"") == "e3b0-c442-98fc-1c14-9afb-f4c8-996f-b924"  # SHA-256 of nothing begins so

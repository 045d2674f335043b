"""Checks of the data of providers."""

from gpuwise.hardware import load_catalog
from gpuwise.hardware.providers import Provider, provider, providers


def test_what_is_unverified_is_a_figure_of_the_provider():
    plain = Provider("plain")
    for each in providers().values():
        for name in each.unverified:
            assert getattr(each, name) != getattr(plain, name)


def test_every_provider_with_figures_names_its_source():
    for each in providers().values():
        assert each.source.text
        assert each.source.as_of


def test_quotas_are_by_terms_and_of_providers_with_offers():
    terms = {offer.terms for offer in load_catalog().offers} | {"any"}
    offered = {offer.provider for offer in load_catalog().offers}
    for each in providers().values():
        assert set(each.quotas) <= terms
        assert each.id in offered
    assert provider("gcp").quota("spot") == provider("gcp").quota("on-demand") != ""
    assert provider("aws").quota("on-demand") == "" != provider("aws").quota("spot")

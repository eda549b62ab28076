"""What several tests share: generators, judges, reference models. Imported as tests.support.…"""
